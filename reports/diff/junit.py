"""A diff as JUnit XML, which every CI system reads."""

import xml.etree.ElementTree as ET

from reports.diff.checks import checks_of
from reports.diff.diff import Diff, Verdict
from reports.diff.text import headline
from reports.format import clean


def to_junit(diff: Diff) -> str:
    """One test case for each check of the gate.

    `worse` is a failure. `cannot tell` and `not measured` are skipped: a check that was not decided has neither passed
    nor failed, and Jenkins, GitLab and the reporters on GitHub count and list skipped tests apart from both. Whether
    the job fails for them is for the exit code to say. What came of the
    others stands in their output.
    """
    checks = checks_of(diff)
    undecided = (Verdict.CANNOT_TELL, Verdict.NOT_MEASURED)
    suite = ET.Element(
        "testsuite",
        name=clean(f"tune diff {diff.base.name} {diff.new.name}"),
        tests=str(len(checks)),
        failures=str(sum(check.verdict is Verdict.WORSE for check in checks)),
        errors="0",
        skipped=str(sum(check.verdict in undecided for check in checks)),
        time="0",
    )
    for check in checks:
        case = ET.SubElement(suite, "testcase", classname="tune.diff", name=clean(check.name), time="0")
        told = clean(f"{check.verdict.value}: {check.text}")
        if check.verdict is Verdict.WORSE:
            ET.SubElement(case, "failure", type="worse", message=told).text = told
        elif check.verdict in undecided:
            ET.SubElement(case, "skipped", message=told)
        else:
            ET.SubElement(case, "system-out").text = told
    ET.SubElement(suite, "system-out").text = clean(headline(diff).sentence)
    return suite_text(suite)


def suite_text(suite: ET.Element) -> str:
    """A file with one suite."""
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
