-- Sets up every connection, so that no server's defaults matter.
--
-- A name that does not fit is an error, never cut off: two clients would share a count. The wait for a lock ends before
-- that for a statement, so that the server says that it was a lock. The server, too, gives up what takes longer than
-- anything that we wait for. Of the two comments, MySQL 8 reads the first, which it applies to reads alone, and MariaDB
-- the second. Reads take no locks, and none is held between statements.
SET SESSION sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', autocommit = 1,
    innodb_lock_wait_timeout = :lock_wait_s, lock_wait_timeout = :lock_wait_s
    /*!80000 , max_execution_time = :statement_ms */ /*M!100101 , max_statement_time = :statement_s */;
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED
