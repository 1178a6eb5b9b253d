-- What each region has counted, one row for a region and a cell (a key in one window). Counts only grow within a row.
--
-- Plain MySQL: nothing here is of MariaDB or of a version of MySQL above 8.0, and it can be applied twice.
--
-- Names are VARBINARY, so that they are compared byte by byte: `User`, `user` and `user ` are three. (A binary collation
-- is not enough: it takes the last two for one.)
--
-- The indexes and who uses them:
--   unique_window_region  publish finds the row to raise; import reads all regions of a cell; the full read goes along it
--   updated_at_idx        import finds the rows that have changed
--   expires_at_idx        cleanup finds the rows that have expired
CREATE TABLE IF NOT EXISTS `ratelimit_window_counts` (
    `pk` BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    `workspace_id` VARBINARY(191) NOT NULL COMMENT 'the domain',
    `namespace` VARBINARY(255) NOT NULL COMMENT 'the rule id',
    `identifier` VARBINARY(255) NOT NULL COMMENT 'whose count it is, or its digest',
    `duration_ms` BIGINT UNSIGNED NOT NULL COMMENT 'the window',
    `sequence` BIGINT UNSIGNED NOT NULL COMMENT 'the windows since 1970',
    `region` VARBINARY(48) NOT NULL,
    `count` BIGINT UNSIGNED NOT NULL COMMENT 'hits, those given back included',
    `refunds` BIGINT UNSIGNED NOT NULL COMMENT 'hits given back',
    `expires_at` BIGINT UNSIGNED NOT NULL COMMENT 'ms since 1970: (sequence + 2) * duration_ms',
    `updated_at` BIGINT UNSIGNED NOT NULL COMMENT 'ms since 1970 by the clock of this server: when a count last grew',
    PRIMARY KEY (`pk`),
    UNIQUE KEY `unique_window_region` (
        `workspace_id`, `namespace`, `identifier`, `duration_ms`, `sequence`, `region`
    ),
    KEY `expires_at_idx` (`expires_at`),
    KEY `updated_at_idx` (`updated_at`)
) ENGINE = InnoDB;
