//! A worker in Rust, written from shm_layout.md alone: it links nothing of wheeld.
//!
//!     rustc -O worker.rs
//!     worker DIRECTORY LAYOUT_VERSION FINGERPRINT TIMERS SEED
//!
//! It schedules, moves, cancels and receives timers at random, and prints a line about each of these.
//! It has no periodic timers and no group, so each record in its ring is the end of its own timer.
//! It is an example of how to read the layout, not a library.

use std::fs::{File, OpenOptions};
use std::io::{Error, Read, Result, Write};
use std::os::fd::AsRawFd;
use std::os::unix::{fs::OpenOptionsExt, net::UnixStream};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

// Where things stand, by the tables of shm_layout.md; tests/clients compares them.
const HEAD_LAYOUT: usize = 8; // head.layout_version
const HEAD_BYTES: usize = 16; // head.bytes
const HEAD_TOKEN: usize = 24; // head.token
const HEAD_FINGERPRINT: usize = 32; // head.fingerprint
const SLABS: usize = 148; // wheel.slab_count
const SUB_BITS: usize = 160; // wheel.sub_bits
const COMP_BITS: usize = 164; // wheel.comp_bits
const RET_BITS: usize = 168; // wheel.ret_bits
const HOMES: usize = 184; // wheel.homes
const LINES_OFF: usize = 192; // wheel.lines_off
const SLEEP_UNTIL: usize = 256; // wheel.sleep_until
const DAEMON_STATE: usize = 280; // wheel.daemon_state
const BACKED: usize = 296; // wheel.backed
const LINE_BYTES: usize = 128; // line
const SUB_HEAD: usize = 0; // line.sub_head
const COMP_TAIL: usize = 8; // line.comp_tail
const RET_TAIL: usize = 16; // line.ret_tail
const BACKLOG: usize = 24; // line.backlog
const OWNERS_OFF: usize = 128; // slots.owners_off
const STATES_OFF: usize = 136; // slots.states_off
const SLOTS_OFF: usize = 144; // slots.slots_off
const SLOT_BYTES: usize = 32; // slot
const DEADLINE: usize = 0; // slot.deadline
const INTERVAL: usize = 8; // slot.interval
const COOKIE: usize = 16; // slot.cookie
const TARGET: usize = 24; // slot.target
const PAYLOAD_SIZE: usize = 28; // slot.payload_size
const FLAGS: usize = 30; // slot.flags
const SUB_OFF: usize = 128; // worker.sub_off
const COMP_OFF: usize = 136; // worker.comp_off
const RET_OFF: usize = 144; // worker.ret_off
const SUB_TAIL: usize = 256; // worker.sub_tail
const COMP_HEAD: usize = 384; // worker.comp_head
const RET_HEAD: usize = 392; // worker.ret_head
const WAIT_SEQ: usize = 400; // worker.wait_seq
const RECORD_BYTES: usize = 40; // completion
const RECORD_COOKIE: usize = 8; // completion.cookie
const RECORD_DEADLINE: usize = 16; // completion.deadline
const RECORD_FIRED: usize = 24; // completion.fired

const MAGIC: u64 = 0x3164_6c65_6568_7700;
const SLAB: usize = 64;
const ARMED: u64 = 1;
const CANCELLED: u64 = 2;
const SCHEDULE: u64 = 0;
const CANCEL: u64 = 1;
const RESCHEDULE: u64 = 2;

#[repr(C)]
struct PollFd(i32, i16, i16);
extern "C" {
    fn mmap(at: *mut u8, bytes: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn poll(fds: *mut PollFd, count: u64, ms: i32) -> i32;
    fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
}

fn now() -> i64 {
    let mut t = [0i64; 2];
    unsafe { clock_gettime(1, &mut t) }; // CLOCK_MONOTONIC
    t[0] * 1_000_000_000 + t[1]
}

/// A mapped segment, and words of it by their offsets.
struct Segment(*mut u8);

impl Segment {
    fn map(name: &str, kind: u64, writable: bool, agreed: (u32, u64)) -> Result<Segment> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .open(format!("/dev/shm/{name}"))?;
        let bytes = file.metadata()?.len() as usize;
        let protection = if writable { 3 } else { 1 };
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                1,
                file.as_raw_fd(),
                0,
            )
        };
        if at as isize == -1 {
            return Err(Error::last_os_error());
        }
        let segment = Segment(at);
        if segment.u64(0).load(Acquire) != MAGIC | kind
            || (
                segment.u32(HEAD_LAYOUT).load(Relaxed),
                segment.word(HEAD_FINGERPRINT),
            ) != agreed
            || segment.word(HEAD_BYTES) != bytes as u64
        {
            return Err(Error::other(format!(
                "{name} is not a segment of this layout"
            )));
        }
        Ok(segment)
    }
    fn u64(&self, at: usize) -> &AtomicU64 {
        unsafe { &*self.0.add(at).cast() }
    }
    fn i64(&self, at: usize) -> &AtomicI64 {
        unsafe { &*self.0.add(at).cast() }
    }
    fn u32(&self, at: usize) -> &AtomicU32 {
        unsafe { &*self.0.add(at).cast() }
    }
    fn u16(&self, at: usize) -> &AtomicU16 {
        unsafe { &*self.0.add(at).cast() }
    }
    fn word(&self, at: usize) -> u64 {
        self.u64(at).load(Relaxed)
    }
    fn half(&self, at: usize) -> usize {
        self.u32(at).load(Relaxed) as usize
    }
}

/// The text or number behind `"key":` of the daemon's one-line answer, as it stands there.
fn value<'a>(json: &'a str, key: &str) -> Result<&'a str> {
    let (_, rest) = json
        .split_once(&format!("\"{key}\":"))
        .ok_or_else(|| Error::other(format!("no {key:?} in the answer {json}")))?;
    Ok(rest
        .trim_start_matches('"')
        .split(['"', ',', '}'])
        .next()
        .unwrap_or(""))
}

fn number(json: &str, key: &str) -> Result<u64> {
    value(json, key)?
        .parse()
        .map_err(|_| Error::other(format!("{key:?} is no number in {json}")))
}

fn fifo(path: String) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(0o4000)
        .open(path) // O_NONBLOCK
}

struct Worker {
    control: UnixStream,
    clock_bell: File,
    bell: File,
    wheel: Segment,
    slots: Segment,
    own: Segment,
    owner: u64,  // our OWNER word
    line: usize, // offset of our line in the wheel
    sub_tail: u64,
    comp_head: u64,
    ret_head: u64,
    wait_seq: u64,
    free: Vec<u32>,
}

impl Worker {
    fn connect(directory: &str, layout: &str, fingerprint: &str) -> Result<Worker> {
        let agreed = (
            layout.parse().map_err(Error::other)?,
            u64::from_str_radix(fingerprint, 16).map_err(Error::other)?,
        );
        let mut control = UnixStream::connect(format!("{directory}/control.sock"))?;
        let hello = r#"{"op":"hello","worker":"rust","layout":"#;
        writeln!(
            control,
            "{hello}{layout},\"fingerprint\":\"{fingerprint}\"}}"
        )?;
        let json = answer(&mut control)?;
        let (_, names) = json.split_once("\"segments\":").unwrap_or(("", ""));
        let map =
            |kind, number, writable| Segment::map(value(names, kind)?, number, writable, agreed);
        let (wheel, own) = (map("wheel", 1, false)?, map("worker", 4, true)?);
        let (row, incarnation) = (number(&json, "row")?, number(&json, "incarnation")?);
        Ok(Worker {
            clock_bell: fifo(format!("{directory}/{}", value(&json, "clock_fifo")?))?,
            bell: fifo(format!("{directory}/{}", value(&json, "worker_fifo")?))?,
            slots: map("slots", 2, true)?,
            owner: incarnation << 16 | (row + 1),
            line: wheel.word(LINES_OFF) as usize + row as usize * LINE_BYTES,
            sub_tail: own.word(SUB_TAIL),
            comp_head: own.word(COMP_HEAD),
            ret_head: own.word(RET_HEAD),
            wait_seq: own.word(WAIT_SEQ),
            free: Vec::new(),
            control,
            wheel,
            own,
        })
    }

    fn ring(&mut self) {
        let _ = self.clock_bell.write(&[1]); // a full FIFO is as good
    }

    fn state(&self, slot: u64) -> &AtomicU64 {
        self.slots
            .u64(self.slots.word(STATES_OFF) as usize + 8 * slot as usize)
    }

    fn slot(&self, slot: u64) -> usize {
        self.slots.word(SLOTS_OFF) as usize + SLOT_BYTES * slot as usize
    }

    /// Publish one submission, and ring the clock if it would sleep for too long.
    fn submit(&mut self, id: u64, kind: u64, deadline: i64) {
        let size = 1u64 << self.wheel.half(SUB_BITS);
        while self.sub_tail - self.wheel.u64(self.line + SUB_HEAD).load(Acquire) >= size {
            self.ring();
            std::thread::yield_now();
        }
        let at = self.own.word(SUB_OFF) as usize + 8 * (self.sub_tail & (size - 1)) as usize;
        self.own.u64(at).store(id | kind << 30, Relaxed);
        self.sub_tail += 1;
        self.own.u64(SUB_TAIL).store(self.sub_tail, SeqCst);
        let used = self.sub_tail - self.wheel.u64(self.line + SUB_HEAD).load(Acquire);
        if deadline < self.wheel.i64(SLEEP_UNTIL).load(SeqCst) || used > size / 2 {
            self.ring();
        }
    }

    /// Slots that the clock gave back after a cancel.
    fn reclaim(&mut self) {
        let mask = (1u64 << self.wheel.half(RET_BITS)) - 1;
        let tail = self.wheel.u64(self.line + RET_TAIL).load(Acquire);
        for position in self.ret_head..tail {
            let at = self.own.word(RET_OFF) as usize + 4 * (position & mask) as usize;
            self.free.push(self.own.u32(at).load(Relaxed));
        }
        self.ret_head = tail;
        self.own.u64(RET_HEAD).store(tail, SeqCst);
        self.make_way();
    }

    /// Ring the clock if it waits for the room that we have just made.
    fn make_way(&mut self) {
        if self.wheel.u64(self.line + BACKLOG).load(SeqCst) != 0 {
            self.ring();
        }
    }

    /// Have the slots of a slab that nobody owns. It is never parked: the clock takes none of it.
    fn claim(&mut self) -> Result<()> {
        let backed = self.wheel.u32(BACKED).load(Acquire) as usize;
        let slabs = backed.min(self.wheel.half(SLABS) - self.wheel.half(HOMES));
        for slab in 0..slabs {
            let owner = self
                .slots
                .u64(self.slots.word(OWNERS_OFF) as usize + 8 * slab);
            if owner
                .compare_exchange(0, self.owner, AcqRel, Relaxed)
                .is_ok()
            {
                self.free.extend(
                    (slab * SLAB..(slab + 1) * SLAB)
                        .rev()
                        .map(|slot| slot as u32),
                );
                return Ok(());
            }
        }
        Err(Error::other("no slab is free"))
    }

    fn schedule(&mut self, delay: i64, cookie: u64) -> Result<u64> {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.free.is_empty() {
            self.claim()?;
        }
        let slot = self.free.pop().unwrap() as u64;
        let (at, deadline) = (self.slot(slot), now() + delay);
        let generation = match (self.state(slot).load(Relaxed) >> 32) as u32 {
            0 | u32::MAX => ((self.wheel.word(HEAD_TOKEN) >> 32) & 0x7ff_ffff) + 1,
            before => before as u64 + 1,
        };
        self.slots.i64(at + DEADLINE).store(deadline, Relaxed);
        self.slots.i64(at + INTERVAL).store(0, Relaxed);
        self.slots.u64(at + COOKIE).store(cookie, Relaxed);
        self.slots.u32(at + TARGET).store(0, Relaxed);
        self.slots.u16(at + PAYLOAD_SIZE).store(0, Relaxed);
        self.slots.u16(at + FLAGS).store(0, Relaxed);
        self.state(slot).store(generation << 32 | ARMED, Release);
        self.submit(generation << 32 | slot, SCHEDULE, deadline);
        Ok(generation << 32 | slot)
    }

    /// Change the state word of an armed timer; false: it has ended.
    fn change(&self, id: u64, to: impl Fn(u64) -> u64) -> bool {
        let word = self.state(id & 0x3fff_ffff);
        let mut state = word.load(Acquire);
        while state >> 32 == id >> 32 && state & 0xff == ARMED {
            match word.compare_exchange(state, to(state), AcqRel, Acquire) {
                Ok(_) => return true,
                Err(found) => state = found,
            }
        }
        false
    }

    fn cancel(&mut self, id: u64) -> bool {
        let won = self.change(id, |state| state & !0xff | CANCELLED);
        if won {
            self.submit(id, CANCEL, i64::MAX);
        }
        won
    }

    /// Only for timers of our own that we have not received yet: their slots are ours.
    fn reschedule(&mut self, id: u64, delay: i64) -> bool {
        let deadline = now() + delay;
        let at = self.slot(id & 0x3fff_ffff) + DEADLINE;
        if self.state(id & 0x3fff_ffff).load(Acquire) >> 32 != id >> 32 {
            return false;
        }
        let before = self.slots.i64(at).swap(deadline, Relaxed);
        let moved = self.change(id, |state| {
            state & !0xffff_ff00 | (state + 0x100) & 0xffff_ff00
        });
        if moved && deadline < before {
            self.submit(id, RESCHEDULE, deadline);
        }
        moved
    }

    /// What is in the completion ring: (id, cookie, deadline, fired). Its slots are free again.
    fn receive(&mut self) -> Vec<(u64, u64, i64, i64)> {
        let mask = (1u64 << self.wheel.half(COMP_BITS)) - 1;
        let tail = self.wheel.u64(self.line + COMP_TAIL).load(SeqCst);
        let mut events = Vec::new();
        for position in self.comp_head..tail {
            let ring = self.own.word(COMP_OFF) as usize;
            let at = ring + RECORD_BYTES * (position & mask) as usize;
            let id = self.own.word(at) & !(3 << 30);
            let times = [RECORD_DEADLINE, RECORD_FIRED].map(|o| self.own.i64(at + o).load(Relaxed));
            events.push((id, self.own.word(at + RECORD_COOKIE), times[0], times[1]));
            self.free.push((id & 0x3fff_ffff) as u32);
        }
        self.comp_head = tail;
        self.own.u64(COMP_HEAD).store(tail, SeqCst);
        self.make_way();
        events
    }

    /// Sleep until the clock rings, or for so long.
    fn wait(&mut self, ms: i32) {
        self.wait_seq += if self.wait_seq & 1 == 1 { 2 } else { 1 };
        self.own.u64(WAIT_SEQ).store(self.wait_seq, SeqCst);
        if self.wheel.u64(self.line + COMP_TAIL).load(SeqCst) == self.comp_head {
            unsafe { poll(&mut PollFd(self.bell.as_raw_fd(), 1, 0), 1, ms) };
        }
        self.wait_seq += 1;
        self.own.u64(WAIT_SEQ).store(self.wait_seq, SeqCst);
        let _ = self.bell.read(&mut [0; 512]); // before the next look at the ring
    }

    fn leave(mut self) -> Result<String> {
        writeln!(self.control, "{{\"op\":\"bye\"}}")?;
        answer(&mut self.control)
    }
}

/// One line of the daemon; an error if it refuses.
fn answer(control: &mut UnixStream) -> Result<String> {
    let (mut line, mut byte) = (Vec::new(), [0u8]);
    while byte[0] != b'\n' {
        control.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let line: String = String::from_utf8_lossy(&line).split_whitespace().collect();
    if line.starts_with("{\"ok\":true") {
        Ok(line)
    } else {
        Err(Error::other(line))
    }
}

/// Print what was received, and forget it; returns how many there were.
fn report(worker: &mut Worker, timers: &mut [Option<u64>]) -> usize {
    let events = worker.receive();
    let seen = now();
    for (id, cookie, deadline, fired) in &events {
        println!("received {id} {deadline} {fired} {seen}");
        timers[*cookie as usize] = None;
    }
    events.len()
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, directory, layout, fingerprint, most, seed] = &words[..] else {
        return Err(Error::other(
            "worker DIRECTORY LAYOUT_VERSION FINGERPRINT TIMERS SEED",
        ));
    };
    let most: usize = most.parse().map_err(Error::other)?;
    let mut seed: u64 = seed.parse::<u64>().map_err(Error::other)? | 1;
    let mut draw = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize % below
    };
    let mut worker = Worker::connect(directory, layout, fingerprint)?;
    let (mut timers, mut ended) = (Vec::new(), 0);
    while timers.len() < most {
        let delay = draw(200_000_000) as i64;
        let due = now() + delay;
        let id = worker.schedule(delay, timers.len() as u64)?;
        println!("scheduled {id} {due}");
        timers.push(Some(id));
        let n = draw(timers.len());
        if let (0, Some(id)) = (draw(3), timers[n]) {
            if worker.cancel(id) {
                println!("cancelled {id}");
                timers[n] = None;
                ended += 1;
            }
        }
        let (delay, n) = (draw(200_000_000) as i64, draw(timers.len()));
        let due = now() + delay;
        if let (0, Some(id)) = (draw(3), timers[n]) {
            if worker.reschedule(id, delay) {
                println!("moved {id} {due}");
            }
        }
        if timers.len() % 50 == 0 {
            ended += report(&mut worker, &mut timers);
        }
    }
    let give_up = now() + 60_000_000_000;
    while ended < most && now() < give_up {
        if worker.wheel.u32(DAEMON_STATE).load(Acquire) != 1 {
            return Err(Error::other("the daemon has stopped"));
        }
        worker.wait(1000);
        ended += report(&mut worker, &mut timers);
    }
    worker.wait(50);
    report(&mut worker, &mut timers); // there is no more
    worker.leave()?;
    Ok(())
}
