-- The columns of the table: name, type, and the most bytes that a binary string may have.
SELECT LOWER(column_name), LOWER(column_type), COALESCE(character_octet_length, 0)
FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = 'ratelimit_window_counts'
