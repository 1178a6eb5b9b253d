-- Raises the rows of a region. unique_window_region finds the row that is there already.
--
-- Counts only grow, so a statement that is late or overtaken changes nothing. One that is repeated dates its rows anew: the
-- first may have been dated long before its commit let others see it, and they look for what was dated lately. updated_at
-- comes first: assignments are made in order, and later ones see what earlier ones have set.
-- VALUES() rather than a row alias, which MariaDB does not know.
INSERT INTO ratelimit_window_counts
    (workspace_id, namespace, identifier, duration_ms, sequence, region, count, refunds, expires_at, updated_at)
VALUES :rows
ON DUPLICATE KEY UPDATE
    updated_at = IF(
        VALUES(count) > count OR VALUES(refunds) > refunds OR (VALUES(count) = count AND VALUES(refunds) = refunds),
        VALUES(updated_at), updated_at
    ),
    count = GREATEST(count, VALUES(count)),
    refunds = GREATEST(refunds, VALUES(refunds))
