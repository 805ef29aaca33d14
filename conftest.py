"""What the tests of all folders have, also if those of one plugin run alone."""

pytest_plugins = ("tests.guards",)
