from hypothesis import HealthCheck, settings

# The same examples in every run, so that a red build means a change in the code, not in the luck.
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
# New random programs each time, and many: what `make test-all` asks for. A failure prints how to repeat it.
settings.register_profile(
    "all",
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci")
