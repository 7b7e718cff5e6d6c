//! A worker in Rust, written from shm_layout.md alone: it links nothing of wheeld.
//!
//!     rustc -O worker.rs
//!     worker DIRECTORY LAYOUT_VERSION FINGERPRINT TIMERS SEED
//!
//! It schedules, moves, cancels and receives timers at random, and prints a line about each of these.
//! It has no periodic timers and no group, so each record in its ring is the end of its own timer.

use std::arch::asm;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::os::unix::{fs::OpenOptionsExt, io::AsRawFd, net::UnixStream};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

/// An offset, by the tables of shm_layout.md; tests/clients compares each with the page.
macro_rules! at {
    ($table:ident.$field:ident = $offset:expr) => { $offset };
}
macro_rules! words {
    ($($name:ident: $word:ty),*) => {
        $(fn $name(&self, at: usize) -> &$word { unsafe { &*self.0.add(at).cast() } })*
    };
}
const HEAD: u64 = 0x3164_6c65_6568_7700; // magic; the last byte is the segment's kind
const SLAB: u64 = 64; // slots
const PORT: usize = 128; // bytes of a worker's port in the wheel
const SLOT: usize = 32;
const RECORD: usize = 40;
const INDEX: u64 = 0x3fff_ffff; // of an id: its slot
const ARMED: u64 = 1;
const CANCELLED: u64 = 2;
const MOVED: u64 = 1 << 31;
const EARLY: u64 = 1 << 30;
const PAUSED: u64 = 1 << 29;
const VERSION: u64 = 0x1fff_ff00;

fn is_armed(state: u64, id: u64) -> bool {
    state >> 32 == id >> 32 && state & 0xff == ARMED
}

/// The first words of a slot: its deadline, and what tells its tenants apart.
fn pair(deadline: i64, rest: u64) -> u128 {
    (rest as u128) << 64 | deadline as u64 as u128
}

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

/// Compare-and-swap of 16 bytes. On arm64 it would be ldaxp and stlxp, or casp.
fn change_pair(at: *mut u128, old: u128, new: u128) -> u128 {
    let (low, high): (u64, u64);
    unsafe {
        asm!(
            "xchg rbx, rsi", "lock cmpxchg16b [rdi]", "mov rbx, rsi", // rbx is the compiler's
            in("rdi") at, inout("rsi") new as u64 => _, in("rcx") (new >> 64) as u64,
            inout("rax") old as u64 => low, inout("rdx") (old >> 64) as u64 => high,
        )
    };
    (high as u128) << 64 | low as u128
}

/// A mapped segment: the words that others read or write too, by their offsets.
struct Segment(*mut u8);

impl Segment {
    fn map(name: &str, kind: u64, writable: bool, agreed: (u32, usize)) -> Result<Segment> {
        let path = format!("/dev/shm/{name}");
        let file = OpenOptions::new().read(true).write(writable).open(path)?;
        let bytes = file.metadata()?.len() as usize;
        let protection = if writable { 3 } else { 1 };
        let fd = file.as_raw_fd();
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, protection, 1, fd, 0) };
        if base as isize == -1 {
            return Err(Error::last_os_error());
        }
        let it = Segment(base);
        let layout = it.u32(at!(head.layout_version = 8)).load(Relaxed);
        let same = it.u64(0).load(Acquire) == HEAD | kind
            && (layout, it.word(at!(head.fingerprint = 32))) == agreed
            && it.word(at!(head.bytes = 16)) == bytes;
        let strange = || Error::other(format!("{name} is not a segment of this layout"));
        same.then_some(it).ok_or_else(strange)
    }
    words! { u64: AtomicU64, i64: AtomicI64, u32: AtomicU32, u16: AtomicU16 }
    fn at(&self, at: usize) -> *mut u128 {
        unsafe { self.0.add(at).cast() }
    }
    /// A word that does not change while we are here.
    fn word(&self, at: usize) -> usize {
        self.u64(at).load(Relaxed) as usize
    }
    /// A ring's last position, of whose size the page has the number of bits.
    fn mask(&self, bits: usize) -> u64 {
        (1 << self.u32(bits).load(Relaxed)) - 1
    }
}

/// Ask the daemon for a line; an error if it refuses.
fn ask(control: &UnixStream, request: &str) -> Result<String> {
    writeln!(&*control, "{request}")?;
    let mut line = String::new();
    BufReader::new(control).read_line(&mut line)?;
    line.retain(|c| !c.is_whitespace());
    if line.starts_with("{\"ok\":true") { Ok(line) } else { Err(Error::other(line)) }
}

/// The text or number behind `"key":` of the daemon's one-line answer, as it stands there.
fn value<'a>(json: &'a str, key: &str) -> Result<&'a str> {
    let found = json.split_once(&format!("\"{key}\":"));
    let (_, rest) = found.ok_or_else(|| Error::other(format!("no {key:?} in {json}")))?;
    Ok(rest.trim_start_matches('"').split(['"', ',', '}']).next().unwrap_or(""))
}

fn fifo(path: String) -> Result<File> {
    let nonblocking = 0o4000;
    OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(path)
}

struct Worker {
    control: UnixStream,
    clock_bell: File,
    bell: File,
    wheel: Segment,
    slots: Segment,
    own: Segment,
    owner: u64,  // our OWNER word
    port: usize, // offset of our port in the wheel
    free: Vec<u64>,
}

impl Worker {
    fn connect(directory: &str, layout: &str, fingerprint: &str) -> Result<Worker> {
        let print = usize::from_str_radix(fingerprint, 16).map_err(Error::other)?;
        let agreed = (layout.parse().map_err(Error::other)?, print);
        let control = UnixStream::connect(format!("{directory}/control.sock"))?;
        let hello = r#"{"op":"hello","worker":"rust","layout":"#;
        let json = ask(&control, &format!("{hello}{layout},\"fingerprint\":\"{fingerprint}\"}}"))?;
        let (_, names) = json.split_once("\"segments\":").unwrap_or(("", ""));
        let map = |name, kind, write| Segment::map(value(names, name)?, kind, write, agreed);
        let number = |key| value(&json, key)?.parse::<u64>().map_err(Error::other);
        let (wheel, own, row) = (map("wheel", 1, false)?, map("worker", 4, true)?, number("row")?);
        Ok(Worker {
            clock_bell: fifo(format!("{directory}/{}", value(&json, "clock_fifo")?))?,
            bell: fifo(format!("{directory}/{}", value(&json, "worker_fifo")?))?,
            slots: map("slots", 2, true)?,
            owner: number("incarnation")? << 16 | (row + 1),
            port: wheel.word(at!(wheel.ports_off = 200)) + row as usize * PORT,
            free: Vec::new(),
            control,
            wheel,
            own,
        })
    }

    fn ring(&mut self) {
        let _ = self.clock_bell.write(&[1]); // a full FIFO is as good
    }

    fn state(&self, id: u64) -> &AtomicU64 {
        let states = self.slots.word(at!(slots.states_off = 136));
        self.slots.u64(states + 8 * (id & INDEX) as usize)
    }

    fn slot(&self, id: u64) -> usize {
        self.slots.word(at!(slots.slots_off = 144)) + SLOT * (id & INDEX) as usize
    }

    /// Publish one submission, and ring the clock if it would sleep for too long.
    fn submit(&mut self, word: u64, deadline: i64) {
        let mask = self.wheel.mask(at!(wheel.sub_bits = 160));
        let head = self.port + at!(port.sub_head = 0);
        let tail = self.own.word(at!(worker.sub_tail = 256)) as u64;
        while tail - self.wheel.u64(head).load(Acquire) > mask {
            self.ring();
            std::thread::yield_now();
        }
        let ring = self.own.word(at!(worker.sub_off = 128));
        self.own.u64(ring + 8 * (tail & mask) as usize).store(word, Relaxed);
        self.own.u64(at!(worker.sub_tail = 256)).store(tail + 1, SeqCst);
        let used = tail + 1 - self.wheel.u64(head).load(Acquire);
        let sleeps = self.wheel.i64(at!(wheel.sleep_until = 384)).load(SeqCst);
        if deadline < sleeps || used > mask / 2 {
            self.ring();
        }
    }

    /// Say how far we have read one of our rings, and ring the clock if it waits for the room.
    fn consumed(&mut self, head: usize, tail: u64) {
        self.own.u64(head).store(tail, SeqCst);
        if self.wheel.u64(self.port + at!(port.backlog = 24)).load(SeqCst) != 0 {
            self.ring();
        }
    }

    /// Slots that the clock gave back after a cancel.
    fn reclaim(&mut self) {
        let mask = self.wheel.mask(at!(wheel.ret_bits = 168));
        let tail = self.wheel.u64(self.port + at!(port.ret_tail = 16)).load(Acquire);
        let ring = self.own.word(at!(worker.ret_off = 144));
        for position in self.own.word(at!(worker.ret_head = 392)) as u64..tail {
            let slot = self.own.u32(ring + 4 * (position & mask) as usize).load(Relaxed);
            self.free.push(slot as u64);
        }
        self.consumed(at!(worker.ret_head = 392), tail);
    }

    /// Have the slots of a slab that nobody owns. It is never parked: the clock takes none of it.
    fn claim(&mut self) {
        let backed = self.wheel.u32(at!(wheel.backed = 424)).load(Acquire);
        let count = |at| self.wheel.u32(at).load(Relaxed);
        let slabs = count(at!(wheel.slab_count = 148)) - count(at!(wheel.homes = 184));
        let owners = self.slots.word(at!(slots.owners_off = 128));
        let take = |slab: &u64| {
            let owner = self.slots.u64(owners + 8 * *slab as usize);
            owner.compare_exchange(0, self.owner, AcqRel, Relaxed).is_ok()
        };
        let slab = (0..backed.min(slabs) as u64).find(take).expect("no slab is free");
        self.free.extend((slab * SLAB..(slab + 1) * SLAB).rev());
    }

    fn schedule(&mut self, delay: i64, cookie: u64) -> u64 {
        if self.free.is_empty() {
            self.reclaim();
        }
        if self.free.is_empty() {
            self.claim();
        }
        let slot = self.free.pop().unwrap();
        let (at, deadline) = (self.slot(slot), now() + delay);
        let generation = match self.state(slot).load(Relaxed) >> 32 {
            0 | 0xffff_ffff => ((self.slots.word(at!(head.token = 24)) >> 32) & 0x7ff_ffff) as u64 + 1,
            before => before + 1,
        };
        let id = generation << 32 | slot;
        self.slots.i64(at + at!(slot.deadline = 0)).store(deadline, Relaxed);
        self.slots.u32(at + at!(slot.target = 8)).store(0, Relaxed);
        self.slots.u16(at + at!(slot.payload_size = 12)).store(0, Relaxed);
        self.slots.u16(at + at!(slot.flags = 14)).store((generation << 4) as u16, Relaxed);
        self.slots.i64(at + at!(slot.interval = 16)).store(0, Relaxed);
        self.slots.u64(at + at!(slot.cookie = 24)).store(cookie, Relaxed);
        self.state(slot).store(generation << 32 | ARMED, Release);
        self.submit(id, deadline);
        id
    }

    fn cancel(&mut self, id: u64) -> bool {
        let end = |state| is_armed(state, id).then(|| state & !0xff | CANCELLED);
        let won = self.state(id).fetch_update(AcqRel, Acquire, end).is_ok();
        if won {
            self.submit(id | 1 << 30, i64::MAX);
        }
        won
    }

    /// Move an armed timer, of any worker: its deadline, then its state word.
    fn reschedule(&mut self, id: u64, delay: i64) -> bool {
        let (deadline, at) = (now() + delay, self.slot(id));
        loop {
            let (before, rest) = (self.slots.i64(at).load(Acquire), self.slots.u64(at + 8).load(Acquire));
            let mut state = self.state(id).load(Acquire);
            let change = |from, to| self.state(id).compare_exchange(from, to, AcqRel, Acquire).is_ok();
            if !is_armed(state, id) {
                return false;
            }
            if deadline < before && state & EARLY == 0 {
                if !change(state, state | EARLY) {
                    continue;
                }
                state |= EARLY;
            }
            let old = pair(before, rest);
            let moved = state & !(VERSION | PAUSED) | (state + 0x100) & VERSION | MOVED;
            if change_pair(self.slots.at(at), old, pair(deadline, rest)) == old && change(state, moved) {
                if state & EARLY != 0 {
                    self.submit(id | 2 << 30, deadline);
                }
                return true;
            }
        }
    }

    /// Print what is in the completion ring, and forget it: its slots are free again.
    fn receive(&mut self, timers: &mut [Option<u64>]) -> usize {
        let mask = self.wheel.mask(at!(wheel.comp_bits = 164));
        let tail = self.wheel.u64(self.port + at!(port.comp_tail = 8)).load(SeqCst);
        let (ring, seen) = (self.own.word(at!(worker.comp_off = 136)), now());
        let head = self.own.word(at!(worker.comp_head = 384)) as u64;
        for position in head..tail {
            let at = ring + RECORD * (position & mask) as usize;
            let id = self.own.u64(at).load(Relaxed) & !(3 << 30);
            let due = self.own.word(at + at!(completion.deadline = 16));
            let fired = self.own.word(at + at!(completion.fired = 24));
            println!("received {id} {due} {fired} {seen}");
            timers[self.own.word(at + at!(completion.cookie = 8))] = None;
            self.free.push(id & INDEX);
        }
        self.consumed(at!(worker.comp_head = 384), tail);
        (tail - head) as usize
    }

    /// Sleep until the clock rings, or for so long: WAIT_SEQ is odd meanwhile.
    fn wait(&mut self, ms: i32) {
        let own = &self.own;
        let seq = (own.word(at!(worker.wait_seq = 400)) as u64 + 1) | 1;
        own.u64(at!(worker.wait_seq = 400)).store(seq, SeqCst);
        let tail = self.wheel.u64(self.port + at!(port.comp_tail = 8)).load(SeqCst);
        if tail == own.word(at!(worker.comp_head = 384)) as u64 {
            unsafe { poll(&mut PollFd(self.bell.as_raw_fd(), 1, 0), 1, ms) };
        }
        own.u64(at!(worker.wait_seq = 400)).store(seq + 1, SeqCst);
        let _ = self.bell.read(&mut [0; 512]); // before the next look at the ring
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, directory, layout, fingerprint, most, seed] = &words[..] else {
        return Err(Error::other("worker DIRECTORY LAYOUT_VERSION FINGERPRINT TIMERS SEED"));
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
        let (n, delay) = (draw(timers.len() + 1), draw(200_000_000) as i64);
        let due = now() + delay;
        match (draw(3), timers.get(n).copied().flatten()) {
            (0, Some(id)) if worker.cancel(id) => {
                println!("cancelled {id}");
                timers[n] = None;
                ended += 1;
            }
            (1, Some(id)) if worker.reschedule(id, delay) => println!("moved {id} {due}"),
            _ => {
                let id = worker.schedule(delay, timers.len() as u64);
                println!("scheduled {id} {due}");
                timers.push(Some(id));
            }
        }
        if draw(50) == 0 {
            ended += worker.receive(&mut timers);
        }
    }
    let give_up = now() + 60_000_000_000;
    while ended < most && now() < give_up {
        if worker.wheel.u32(at!(wheel.daemon_state = 408)).load(Acquire) != 1 {
            return Err(Error::other("the daemon has stopped"));
        }
        worker.wait(1000);
        ended += worker.receive(&mut timers);
    }
    worker.wait(50);
    worker.receive(&mut timers); // there is no more
    ask(&worker.control, r#"{"op":"bye"}"#).map(drop)
}
