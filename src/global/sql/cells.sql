-- All rows of some cells, the rows of a cell one after the other.
--
-- The cells come as a table of constants, and unique_window_region, by its first five columns, finds the rows of each. The
-- index and the order of the two tables are forced: a list of thousands of constants, or a join that begins with the large
-- table, would have the server go through all of it.
-- UNION ALL rather than VALUES, which MySQL and MariaDB write differently.
SELECT
    r.workspace_id, r.namespace, r.identifier, r.duration_ms, r.sequence, r.region, r.count, r.refunds, r.updated_at
FROM (:cells) AS c
STRAIGHT_JOIN ratelimit_window_counts AS r FORCE INDEX (unique_window_region)
    ON r.workspace_id = c.workspace_id AND r.namespace = c.namespace AND r.identifier = c.identifier
    AND r.duration_ms = c.duration_ms AND r.sequence = c.sequence
ORDER BY c.workspace_id, c.namespace, c.identifier, c.duration_ms, c.sequence
