-- All rows that have not expired, one cell after the other, from a cell on.
--
-- It reads along unique_window_region, so that the first row comes at once and the server sorts and holds nothing. The
-- index also finds the cell to begin at: its five columns are compared one by one, which servers take for ranges of the
-- index, while a comparison of rows, (a, b) >= (1, 2), would go through all of it. Empty names and zeros are before any
-- cell.
SELECT
    workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, updated_at
FROM ratelimit_window_counts FORCE INDEX (unique_window_region)
WHERE expires_at > :now_ms AND (
    workspace_id > :workspace_id
    OR (workspace_id = :workspace_id AND namespace > :namespace)
    OR (workspace_id = :workspace_id AND namespace = :namespace AND identifier > :identifier)
    OR (workspace_id = :workspace_id AND namespace = :namespace AND identifier = :identifier
        AND duration_ms > :duration_ms)
    OR (workspace_id = :workspace_id AND namespace = :namespace AND identifier = :identifier
        AND duration_ms = :duration_ms AND sequence >= :sequence)
)
ORDER BY workspace_id, namespace, identifier, duration_ms, sequence, region
