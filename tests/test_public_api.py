"""What `import verdict_jax` offers."""

import pytest

import verdict_jax


def test_every_exported_name_exists():
    for name in verdict_jax.__all__:
        assert getattr(verdict_jax, name) is not None


def test_lazy_names_are_the_objects_of_their_modules():
    from verdict_jax import protocols

    assert verdict_jax.Question is protocols.Question
    assert verdict_jax.Panel is protocols.Panel


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = verdict_jax.no_such_name
