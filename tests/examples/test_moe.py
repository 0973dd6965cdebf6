"""The mixture-of-experts example: its experts against dense computation, on all devices, and that it learns."""

from types import ModuleType

import numpy as np
import pytest

import anabranch as ab


@pytest.mark.parametrize("devices", [{}, {"sim": {"count": 3, "flops": 1e6}}])
def test_experts_and_their_gradients_are_those_of_dense_computation(example: ModuleType, devices: dict) -> None:
    random = np.random.default_rng(0)
    ab.config.set_devices(**devices)
    try:
        with ab.Graph().as_default():
            experts = example.Experts(4, 3, 5)
            tokens, chosen = ab.placeholder((None, 3), "float32"), ab.placeholder((None,), "int32")
            feeds = {tokens: random.normal(size=(40, 3)), chosen: random.choice([0, 0, 0, 1, 3], 40)}
            found: list[list[np.ndarray]] = []
            for made in (experts(tokens, chosen), experts.dense(tokens, chosen)):
                slopes = ab.gradients(ab.ops.sum(made * made * made), [tokens, *experts.variables])
                found.append(ab.Session().run([made, *map(ab.convert_to_tensor, slopes)], feeds))
    finally:
        ab.config.set_devices()
    for value, dense in zip(*found, strict=True):
        np.testing.assert_allclose(value, dense, rtol=1e-4, atol=1e-5)


def test_tokens_are_what_they_are_said_to_be(example: ModuleType) -> None:
    maps = np.random.default_rng(1).normal(size=(3, 4, 4))
    tokens, targets = example.draw(np.random.default_rng(0), maps, 50)
    kinds = tokens[:, :3].argmax(axis=1)
    assert set(kinds) == {0, 1, 2}
    np.testing.assert_allclose(
        targets, [token @ maps[kind] for token, kind in zip(tokens, kinds, strict=True)], rtol=1e-4
    )


def test_it_learns(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    losses = example.main(["--steps=60", "--most=0.9"])
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    told = capsys.readouterr().out
    assert "tokens of the experts" in told
    assert "of that of the best linear map: 0." in told


def test_it_fails_where_it_misses_its_goal(example: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"The goal, 0.05 of that error, was missed"):
        example.main(["--quick", "--most=0.05"])


def test_error_of_one_map_is_what_it_leaves(example: ModuleType) -> None:
    random = np.random.default_rng(0)
    tokens, noise = random.normal(size=(4000, 3)), random.normal(size=(4000, 2))
    targets = tokens @ random.normal(size=(3, 2)) + 1.0
    assert example.error_of_one_map(tokens, targets) < 1e-20
    np.testing.assert_allclose(example.error_of_one_map(tokens, targets + noise), 1.0, rtol=0.05)
