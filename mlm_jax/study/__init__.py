"""Studies: questions about masking that are answered by counting, beside what theory says."""
