"""The gated delta rule: gates, recurrent meaning, decode step by slot, ragged chunked prefill."""
