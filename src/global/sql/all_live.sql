-- All rows that have not expired, one cell after the other.
--
-- Along unique_window_region, so that the first row comes at once and nothing is sorted or held by the server.
SELECT
    workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, updated_at
FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
WHERE expires_at > :now_ms
ORDER BY workspace_id, namespace, identifier, duration_ms, sequence, region
