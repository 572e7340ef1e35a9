"""Open files stay in their process."""

import multiprocessing
import os
import pickle
import sys

import pytest

from avalanche_vilco.core.handles import PerProcess, open_lmdb


def test_opens_once_a_process_and_anew_after_fork():
    handle = PerProcess(os.getpid)
    assert handle.get() == handle.get() == os.getpid()
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    child = fork.Process(target=lambda: answers.put(handle.get()))
    child.start()
    assert answers.get() == child.pid
    child.join()
    assert handle.get() == os.getpid()


def test_is_opened_late_and_once():
    opened: list[int] = []
    handle = PerProcess(lambda: opened.append(1))
    assert opened == []
    handle.get()
    handle.get()
    assert opened == [1]


def test_pickle_leaves_what_is_open_behind():
    handle = PerProcess(object)
    first = handle.get()
    assert pickle.loads(pickle.dumps(handle)).get() is not first


def test_absent_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(ImportError, match=r"pip install 'avalanche-vilco\[lmdb\]'"):
        open_lmdb(tmp_path)


def test_folder_without_database_is_named(tmp_path):
    pytest.importorskip("lmdb", reason="needs the extra 'lmdb'")
    with pytest.raises(FileNotFoundError, match=r"expected .*data\.mdb"):
        open_lmdb(tmp_path)
