//! Reads a log of any size in blocks of whole lines.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use memchr::{memchr, memrchr};

use crate::log::MAX_LINE_BYTES;

/// Size of one read.
const BLOCK_BYTES: usize = 256 * 1024;

/// Returns the content of a log, decompressed if it is gzip.
///
/// # Errors
/// Its first bytes can't be read.
pub fn open_log(log: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let mut log = BufReader::with_capacity(BLOCK_BYTES, log);
    Ok(match log.fill_buf()?.starts_with(&GZIP) {
        true => Box::new(MultiGzDecoder::new(log)),
        false => Box::new(log),
    })
}

/// A reader of blocks that end at the end of a line.
pub(crate) struct LineBlocks<R> {
    from: R,
    /// The start of an incomplete line.
    rest: Vec<u8>,
    /// True if the next bytes belong to a line that was too long.
    skipping: bool,
    over: bool,
}

impl<R: Read> LineBlocks<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, rest: Vec::new(), skipping: false, over: false }
    }

    /// Returns the next lines, the last of which may lack its end; `None` after the last. A line that is too
    /// long is truncated.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.over {
                return Ok(None);
            }
            let mut block = std::mem::take(&mut self.rest);
            let start = block.len();
            block.resize(start + BLOCK_BYTES, 0);
            let read = fill(&mut self.from, &mut block[start..])?;
            block.truncate(start + read);
            self.over = read < BLOCK_BYTES;
            if self.skipping {
                match memchr(b'\n', &block) {
                    Some(end) => {
                        block.drain(..=end);
                        self.skipping = false;
                    }
                    None => continue,
                }
            }
            match memrchr(b'\n', &block) {
                Some(end) if !self.over => self.rest = block.split_off(end + 1),
                None if !self.over && block.len() > MAX_LINE_BYTES => {
                    block.truncate(MAX_LINE_BYTES + 1);
                    block.push(b'\n');
                    self.skipping = true;
                }
                None if !self.over => {
                    self.rest = block;
                    continue;
                }
                _ => {}
            }
            return Ok((!block.is_empty()).then_some(block));
        }
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(from: &mut impl Read, room: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < room.len() {
        match from.read(&mut room[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let mut blocks = LineBlocks::new(text);
        let mut all = Vec::new();
        while let Some(block) = blocks.next().unwrap() {
            let block = block.strip_suffix(b"\n").unwrap_or(&block);
            all.extend(block.split(|byte| *byte == b'\n').map(<[u8]>::to_vec));
        }
        all
    }

    #[test]
    fn blocks_contain_only_whole_lines() {
        let text: String = (0..60_000).map(|line| format!("line {line}\n")).collect();
        let wanted: Vec<Vec<u8>> = text.lines().map(|line| line.as_bytes().to_vec()).collect();
        assert!(text.len() > 2 * BLOCK_BYTES);
        assert_eq!(lines(text.as_bytes()), wanted);
        assert_eq!(lines(text.trim_end().as_bytes()), wanted);
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_end_takes_no_memory_without_end() {
        let long = [b"a\n".as_slice(), &vec![b'x'; 3 * BLOCK_BYTES + 5], b"\nb\nc"].concat();
        let found = lines(&long);
        let lengths: Vec<usize> = found.iter().map(Vec::len).collect();
        assert_eq!((lengths[0], lengths.last()), (1, Some(&1)));
        assert_eq!(found.len(), 4, "{lengths:?}");
        assert!(lengths[1] > MAX_LINE_BYTES && lengths[1] <= 2 * BLOCK_BYTES, "{lengths:?}");
    }

    #[test]
    fn gzip_log_is_decompressed() {
        use std::io::Write;
        let mut packed = Vec::new();
        for part in [b"one\n", b"two\n"] {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(part).unwrap();
            packed.extend(gzip.finish().unwrap());
        }
        for log in [packed, b"one\ntwo\n".to_vec()] {
            let mut text = String::new();
            open_log(io::Cursor::new(log)).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "one\ntwo\n");
        }
    }
}
