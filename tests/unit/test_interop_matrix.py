"""The page on compatibility says what ran, and hides no case that failed."""

from __future__ import annotations

import re

from tests.interop.matrix import NOT_RUN, PAGE, page


def test_a_feature_has_a_cell_for_each_version() -> None:
    """A version that a feature failed with, or never ran with, would look supported."""
    ours = "our SDK -> java namesrv + java broker"
    producer, spark = "tests/interop/cases/test_mqproducer.py", "tests/interop/cases/test_spark.py"
    java = "tests/interop/cases/test_java_clients.py"
    cases = {
        f"{producer}::a": ours,
        f"{producer}::b": f"{ours} (binary)",
        f"{producer}::c": f"{ours} of 4.9.7",
        f"{producer}::d": f"{ours} of 4.9.7",
        f"{producer}::e": f"{ours} of 5.3.3",
        f"{spark}::f": "Spark -> java namesrv + java broker of 4.9.7",
        f"{spark}::g": "Spark -> java namesrv + java broker of 5.3.3",
        f"{spark}::h": "Spark -> java namesrv + java broker of 5.3.3",
        f"{producer}::only": f"{ours} of 5.9.9",  # a version without a column
        f"{producer}::new": f"{ours} of 5.5.0",
        f"{java}::j": "Java client (binary) -> our namesrv + our broker",
        f"{java}::k": "Java client of 5.5.0 (JSON) -> our namesrv + our broker",
        f"{java}::l": "Java client of 5.5.0 (JSON) -> our namesrv + our broker",
        f"{java}::m": "Java client (JSON) -> our namesrv + java broker",
        "tests/interop/cases/test_java_lite_pull.py::n[4.9.7]": "Java lite pull consumer -> our servers",
        "tests/interop/cases/test_go_client.py::o": "Go client -> our namesrv + our broker",
        "tests/interop/cases/test_users.py::p": f"{ours} of 5.3.3",
        "tests/interop/cases/test_ha.py::i": "java master -> our slave",
    }
    results = dict.fromkeys(cases, "passed") | {f"{producer}::d": "failed", f"{producer}::gone": "passed"}
    results[f"{java}::l"] = "failed"
    del results[f"{producer}::e"], results[f"{spark}::h"]
    lines = page(cases, results).splitlines()
    tested = ("| Producer", "| Access control: users", "| Spark")
    assert [line.partition(" | ")[2] for line in lines if line.startswith(tested)] == [
        "2 | 1 of 2 | not run | 1 |",
        " |  | 1 | not run |",
        "not run | 1 | 1 of 2 | not run |",
    ]
    clients = ("| Applications", "| Lite pull", "| rocketmq-client-go")
    assert [line.partition(" | ")[2] for line in lines if line.startswith(clients)] == [
        "1 |  |  | 1 of 2 |  |",
        " | 1 |  |  |  |",
        " |  |  |  | 1 |",
    ]
    assert "| java master -> our slave | 1 |" in lines
    assert f"| {ours} of 5.9.9 | 1 |" in lines
    assert "| Java client (JSON) -> our namesrv + java broker | 1 |" in lines


def test_each_case_of_the_page_has_passed() -> None:
    """The documentation would name a version as tested that a feature failed with, or never ran with."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert [row for row in rows if NOT_RUN in row or re.search(r"\d of \d", row)] == []
