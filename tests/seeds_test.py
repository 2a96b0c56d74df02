from lm_mia.seeds import rng


def test_streams_depend_on_seed_and_purpose_alone():
    draws = {
        (seed, purpose): tuple(rng(seed, purpose).integers(2**62, size=4))
        for seed in (0, 1, 10**30)
        for purpose in ("a", "b")
    }
    assert len(set(draws.values())) == 6
    assert tuple(rng(0, "a").integers(2**62, size=4)) == draws[0, "a"]


def test_the_raw_stream_never_changes():
    assert rng(0, "a").bit_generator.random_raw() == 13920770739053282023
