-- All rows of some rules that have not expired, one cell after the other, from a cell on.
--
-- unique_window_region begins with the two columns that name a rule, so the server reads the ranges of these rules along it,
-- in its order, and nothing else: it sorts and holds nothing.
SELECT
    workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, updated_at
FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
WHERE expires_at > :now_ms AND (:rules)
ORDER BY workspace_id, namespace, identifier, duration_ms, sequence, region
