-- All rows of the cells in which any row has changed, one cell after the other.
--
-- updated_at_idx finds the changed rows, however many live beside them; unique_window_region, by its first five columns,
-- the rows of each cell. Both are forced, and so is the order of the two tables: statistics of a table that turns over
-- within minutes are always wrong.
SELECT
    r.workspace_id, r.namespace, r.identifier, r.duration_ms, r.sequence, r.region, r.count, r.refunds, r.updated_at
FROM (
    SELECT DISTINCT workspace_id, namespace, identifier, duration_ms, sequence
    FROM ratelimit_window_counts FORCE INDEX (updated_at_idx)
    WHERE updated_at >= :since_ms AND expires_at > :now_ms
) AS c
STRAIGHT_JOIN ratelimit_window_counts AS r FORCE INDEX (unique_window_region)
    ON r.workspace_id = c.workspace_id AND r.namespace = c.namespace AND r.identifier = c.identifier
    AND r.duration_ms = c.duration_ms AND r.sequence = c.sequence
ORDER BY c.workspace_id, c.namespace, c.identifier, c.duration_ms, c.sequence
