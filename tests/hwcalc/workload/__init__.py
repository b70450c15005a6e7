"""Tests of workloads and traces."""
