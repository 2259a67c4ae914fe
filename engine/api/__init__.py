"""The HTTP service: OpenAI-shaped completions, the admin API, health and metrics."""
