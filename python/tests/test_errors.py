# SPDX-License-Identifier: Apache-2.0
"""The program's text of an error becomes the exception that it describes."""

import unittest

import tessera
from tessera.errors import error_of


class Errors(unittest.TestCase):
    def test_one_problem_has_place_key_and_fix(self):
        error = error_of(2, "warning: x\nerror: my.json:3:12: optimizer.params.lr: 0 is too small\n  fix: use 1e-4\n")
        self.assertIsInstance(error, tessera.ConfigError)
        self.assertEqual(
            error.problems, [tessera.Problem("my.json:3:12", "optimizer.params.lr", "0 is too small", "use 1e-4")]
        )
        self.assertEqual((error.exit_code, error.fix), (2, "use 1e-4"))

    def test_many_problems_are_listed(self):
        error = error_of(
            2,
            "error: 2 problems in the configuration:\n"
            '  my.json:2:3: modle: unknown key\n    fix: did you mean "model"?\n'
            "  --set trainer.seed=x: trainer.seed: expected a number, found a string\n",
        )
        self.assertEqual([problem.key for problem in error.problems], ["modle", "trainer.seed"])
        self.assertEqual(error.problems[0].fix, 'did you mean "model"?')
        self.assertEqual(error.problems[1].place, "--set trainer.seed=x")

    def test_each_exit_code_has_its_class(self):
        for code, kind in {
            3: tessera.DataError,
            4: tessera.FormatError,
            5: tessera.OutOfMemoryError,
            6: tessera.CommunicationError,
            7: tessera.NumericError,
            8: tessera.SystemFailure,
            9: tessera.IncompleteError,
            70: tessera.BugError,
            75: tessera.StoppedError,
            130: tessera.StoppedError,
        }.items():
            error = error_of(code, "error: something\n  fix: do this\n    and that\n")
            self.assertIs(type(error), kind)
            self.assertEqual(error.fix, "do this\nand that")

    def test_the_last_error_counts(self):
        error = error_of(6, "error: first\nrank 1: error: other\nerror: last: of all\n  fix: again\n")
        self.assertEqual(error.what, "last: of all")

    def test_a_program_without_a_message(self):
        self.assertIn("exit code 137", str(error_of(137, "")))
        self.assertIn("Killed", str(error_of(137, "x\nKilled\n")))


if __name__ == "__main__":
    unittest.main()
