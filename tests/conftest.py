"""No test is about time: a busy machine that draws or runs an example slowly has found no fault."""

from hypothesis import HealthCheck, settings

settings.register_profile("kernelgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernelgen")
