"""Several processes: launcher environment, rendezvous, launch, worker, supervisor."""
