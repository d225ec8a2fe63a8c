"""Fixes of a host, applied where their faults are."""

from agreid_plugin.hosts.host_fixes import HostFixes


def test_a_fix_is_applied_where_its_fault_is():
    fixes, state = HostFixes(), {"broken": True, "done": []}

    @fixes.add("json", "it is broken", lambda: state["broken"])
    def mend():
        state["broken"] = False
        state["done"].append("mend")

    @fixes.add("json", "never broken", lambda: False)
    def leave():
        state["done"].append("leave")

    @fixes.add("json", "earlier", lambda: True, before=True)
    def early():
        state["done"].append("early")

    @fixes.add("no_such_module", "later", lambda: True)
    def late():
        state["done"].append("late")

    joined = HostFixes(fixes)
    joined.run_import("json", lambda: state["done"].append("import"))
    assert state["done"] == ["early", "import", "mend"]
    joined.apply("json")  # its own test finds the fault gone
    assert state["done"] == ["early", "import", "mend"]
    assert joined.applied() == fixes.applied() == {"mend": "it is broken", "early": "earlier"}
    assert joined.armed() == {"late": "later"}
    assert [fix.name for fix in joined.all] == ["mend", "leave", "early", "late"]
    assert mend.__name__ == "mend"


def test_hosts_do_not_share_fixes():
    one, other = HostFixes(), HostFixes()
    one.add("json", "a reason", lambda: True, before=True)(lambda: None)
    one.apply("json", before=True)
    assert len(one.applied()) == 1
    assert not other.all
    assert not other.applied()
