-- The columns of the table's indexes, in their order: index, column, and 0 if it is unique.
SELECT LOWER(index_name), LOWER(column_name), non_unique
FROM information_schema.statistics
WHERE table_schema = DATABASE() AND table_name = 'ratelimit_window_counts'
ORDER BY index_name, seq_in_index
