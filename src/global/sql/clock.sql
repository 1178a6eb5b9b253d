-- The server's clock, in ms since 1970. The session's time zone is UTC, so that no hour comes twice.
SELECT CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS UNSIGNED)
