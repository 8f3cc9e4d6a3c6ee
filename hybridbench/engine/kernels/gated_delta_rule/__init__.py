"""The gated delta rule: gates, recurrent definition, decode step and ragged chunked prefill."""
