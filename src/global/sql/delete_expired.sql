-- Deletes some of the rows that have expired, the oldest first, along expires_at_idx (which ends in pk).
DELETE FROM ratelimit_window_counts
WHERE expires_at < :before_ms
ORDER BY expires_at, pk
LIMIT :at_most
