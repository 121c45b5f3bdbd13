//! Classic pcap format (draft-ietf-opsawg-pcap), with microseconds or nanoseconds, and the
//! "modified" format of Alexey Kuznetsov's patch to libpcap.

use std::io::Read;

use pcap_parser::{
    LegacyPcapBlock, PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified,
    parse_pcap_header,
};

use super::{Error, FileSource, LinkType, MAGIC_LEN, Packet, Parsed};

/// Header of a classic pcap file.
#[derive(Debug)]
pub(super) struct FileHeader {
    header: PcapHeader,
}

impl FileHeader {
    pub(super) fn read<R: Read>(source: &mut FileSource<R>) -> Result<Self, Error> {
        let magic = source.bytes()[..MAGIC_LEN].to_vec();
        match source.next("file header", parse_pcap_header) {
            Ok(Some(header)) => Ok(Self { header }),
            Ok(None) | Err(Error::Malformed { .. }) => Err(Error::NotACapture(magic)),
            Err(error) => Err(error),
        }
    }

    pub(super) fn next<R: Read>(
        &self,
        source: &mut FileSource<R>,
    ) -> Result<Option<Packet>, Error> {
        let parse = match (self.header.is_modified_format(), self.header.is_bigendian()) {
            (true, _) => parse_pcap_frame_modified,
            (false, true) => parse_pcap_frame_be,
            (false, false) => parse_pcap_frame,
        };
        source.next("packet", |bytes| -> Parsed<'_, Packet> {
            parse(bytes).map(|(rest, record)| (rest, self.packet(&record)))
        })
    }

    fn packet(&self, record: &LegacyPcapBlock<'_>) -> Packet {
        let nanoseconds_per_unit = if self.header.is_nanosecond_precision() { 1 } else { 1000 };
        let time = u64::from(record.ts_sec) * 1_000_000_000
            + u64::from(record.ts_usec) * nanoseconds_per_unit;
        // The upper 16 bits describe a frame check sequence after each packet, which is cut off by
        // the length in the IP header.
        let link = LinkType(self.header.network.0.cast_unsigned() & 0xffff);
        let original_length = record.origlen as usize;
        Packet { time: Some(time), link, bytes: record.data.to_vec(), original_length }
    }
}
