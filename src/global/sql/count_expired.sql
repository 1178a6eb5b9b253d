-- Counts the rows that have expired, in expires_at_idx alone.
SELECT COUNT(*)
FROM ratelimit_window_counts FORCE INDEX (expires_at_idx)
WHERE expires_at < :before_ms
