"""The built-in functions of Spark 4.3 and of Hive, in `functions.txt`. None of them reads a table.

`SHOW SYSTEM FUNCTIONS` lists Spark's; `tests/integration/test_locks_spark_plans.py` compares them.
"""

from importlib.resources import files

BUILT_IN = frozenset(files(__package__).joinpath("functions.txt").read_text().split())
