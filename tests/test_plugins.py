import pytest

from gnn_dist import plugins
from gnn_dist.errors import InputError


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("odd_a.part", "x = (", ["odd_a.part", "SyntaxError"]),
        ("odd_b.part", "{}.nothing", ["odd_b.part", "AttributeError", "nothing"]),
        ("odd_c.part", "1 / 0", ["odd_c.part", "ZeroDivisionError", "correct"]),
        ("odd_d.part", "", ["odd_d", "no attribute 'part'"]),
        (".part", "", ["'.part'", "correct the name"]),
        ("..part", "", ["'..part'", "correct the name"]),
        ("odd_e.", "", ["odd_e."]),
    ],
)
def test_a_part_that_cannot_be_imported_is_told_with_the_reason(
    name, text, words, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name.split('.')[0] or 'none'}.py").write_text(text)
    with pytest.raises(InputError) as error:
        plugins.resolve("model", name, {})
    for word in words:
        assert word in str(error.value)
