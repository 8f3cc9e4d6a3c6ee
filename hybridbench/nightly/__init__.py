"""The nightly job: a plan, its cells, one report; the scheduling is an existing engine's."""
