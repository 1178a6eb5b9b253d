//! A Redis of our own, with nothing in it, that keeps nothing on a disk.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::process::Process;

pub struct RedisServer {
    process: Process,
    socket: PathBuf,
}

impl RedisServer {
    pub fn start(socket: PathBuf) -> anyhow::Result<RedisServer> {
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]).arg(&socket);
        let mut process = Process::start(command.stdout(Stdio::null()))?;
        process.wait_until("Redis answers", || socket.exists())?;
        Ok(RedisServer { process, socket })
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn url(&self) -> String {
        format!("unix://{}", self.socket.display())
    }
}
