"""What the test files share: oracles, memory layouts, calls, routes, strategies."""
