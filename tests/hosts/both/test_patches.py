"""Repairs of a host, applied where their faults are."""

from agreid_plugin.hosts.host_fixes import Patches


def test_a_repair_is_applied_where_its_fault_is():
    patches, state = Patches(), {"broken": True, "done": []}

    @patches.add("after", "it is broken", lambda: state["broken"])
    def mend():
        state["broken"] = False
        state["done"].append("mend")

    @patches.add("after", "never broken", lambda: False)
    def leave():
        state["done"].append("leave")

    @patches.add("before", "earlier", lambda: True)
    def early():
        state["done"].append("early")

    patches.apply("after")
    assert patches.applied() == {"mend": "it is broken"}
    patches.apply("after")  # its own test finds the fault gone
    patches.apply("before")
    assert state["done"] == ["mend", "early"]
    assert patches.applied() == {"mend": "it is broken", "early": "earlier"}
    assert [each.name for each in patches.all] == ["mend", "leave", "early"]
    assert mend.__name__ == "mend"


def test_hosts_do_not_share_repairs():
    one, other = Patches(), Patches()
    one.add("before", "a reason", lambda: True)(lambda: None)
    one.apply("before")
    assert len(one.applied()) == 1
    assert not other.all
    assert not other.applied()
