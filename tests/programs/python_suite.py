"""Runs tests of Python's own suite and writes what came of each, as JSON: {name: [outcome, detail]}.

usage: python_suite.py OUTPUT MODULE [CLASS-PATTERN]

Outcomes: ok, failed, skipped. A test that is still running after some minutes ends the whole run with a stack trace.
"""

import faulthandler
import json
import re
import sys
import unittest
from test import support

LIMIT = 60  # seconds for one test


class Result(unittest.TestResult):
    """Keeps the outcome of every test, and of every class that could not be set up."""

    def __init__(self):
        super().__init__()
        self.outcomes = {}

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        print("test", test.id(), file=sys.stderr, flush=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        self.outcomes.setdefault(test.id(), ["ok", ""])
        super().stopTest(test)

    def addError(self, test, err):
        self.outcomes[test.id()] = ["failed", self._exc_info_to_string(err, test)]

    addFailure = addError

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addError(test, err)

    def addSkip(self, test, reason):
        self.outcomes[test.id()] = ["skipped", reason]

    def addExpectedFailure(self, test, err):
        self.outcomes[test.id()] = ["ok", ""]

    def addUnexpectedSuccess(self, test):
        self.outcomes[test.id()] = ["failed", "unexpected success"]


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def main(output, module, pattern="."):
    # "network" means sockets there, and hosts of the internet elsewhere.
    support.use_resources = ["network"] if module == "test.test_socketserver" else []
    tests = unittest.defaultTestLoader.loadTestsFromName(module)
    chosen = [test for test in flatten(tests) if re.search(pattern, type(test).__name__) or isinstance(test, unittest.loader._FailedTest)]
    result = Result()
    unittest.TestSuite(chosen).run(result)
    with open(output, "w") as file:
        json.dump(result.outcomes, file)


main(*sys.argv[1:])
