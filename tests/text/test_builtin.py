"""Builtin text: English documentation that is on the machine, in a stable order, without running anything."""

from latemask.text.builtin import BuiltinReader, builtin_files, docstrings


def test_the_same_documents_in_the_same_order_every_time():
    one, two = ([doc.id for doc in BuiltinReader(limit=100_000).run()] for _ in range(2))
    assert one == two
    assert len(one) > 5


def test_it_is_prose_and_no_docstring_comes_twice():
    documents = list(BuiltinReader(limit=600_000).run())
    assert sum(doc.text.count(" the ") for doc in documents) > 1000
    texts = [doc.text for doc in documents]
    assert len(set(texts)) == len(texts)


def test_it_reads_the_standard_library_and_dependencies():
    names = {path.as_posix() for path in builtin_files()}
    assert any(name.endswith("/json/__init__.py") for name in names)
    assert any("/numpy/" in name for name in names)
    assert not any("/tests/" in name for name in names)


def test_docstrings_are_read_not_imported(tmp_path):
    module = tmp_path / "m.py"
    words = "Words about the module." * 5
    module.write_text(f'"""{words}"""\nraise SystemExit\ndef f():\n    """short"""\n')
    assert docstrings(module) == [words]


def test_a_file_that_is_not_python_has_none(tmp_path):
    module = tmp_path / "m.py"
    module.write_text("def (:")
    assert docstrings(module) == []
