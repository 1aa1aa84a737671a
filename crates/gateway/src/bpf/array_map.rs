//! A map of the type array (`BPF_MAP_TYPE_ARRAY`), which another process may have created.
//!
//! `unsafe` here reads a value by a map's descriptor, for which the Rust binding of libbpf has no function.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use bytemuck::Pod;
use libbpf_rs::{Error, MapHandle, MapInfo, MapType, libbpf_sys as sys};

use super::{BpfError, failed};

/// Bytes of an index.
const KEY_SIZE: u32 = size_of::<u32>() as u32;

/// The map, which exists for as long as a process has it open.
#[derive(Debug)]
pub(crate) struct ArrayMap<V> {
    map: OwnedFd,
    values: PhantomData<V>,
}

impl<V: Pod> ArrayMap<V> {
    const VALUE_SIZE: u32 = size_of::<V>() as u32;

    /// A new one of zeros.
    pub(crate) fn create(name: &str, entries: u32) -> Result<ArrayMap<V>, BpfError> {
        let options = sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
            ..sys::bpf_map_create_opts::default()
        };
        let created =
            MapHandle::create(MapType::Array, Some(name), KEY_SIZE, Self::VALUE_SIZE, entries, &options);
        let map = created.and_then(|map| Ok(map.as_fd().try_clone_to_owned()?));
        Ok(ArrayMap { map: map.map_err(failed(format!("create the map '{name}'")))?, values: PhantomData })
    }

    /// That of another process.
    ///
    /// # Errors
    /// The descriptor is not of an array of such values.
    pub(crate) fn open(map: OwnedFd) -> io::Result<ArrayMap<V>> {
        let info = MapInfo::new(map.as_fd()).map_err(io::Error::other)?;
        if (info.map_type(), info.info.key_size, info.info.value_size)
            != (MapType::Array, KEY_SIZE, Self::VALUE_SIZE)
        {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "expected a map of another type"));
        }
        Ok(ArrayMap { map, values: PhantomData })
    }

    /// The value at an index.
    pub(crate) fn get(&self, index: u32) -> Result<V, BpfError> {
        let mut value = V::zeroed();
        let (key, into) = (ptr::from_ref(&index).cast(), ptr::from_mut(&mut value).cast());
        // SAFETY: the kernel reads an index and writes a value, of these sizes.
        match unsafe { sys::bpf_map_lookup_elem(self.map.as_raw_fd(), key, into) } {
            0 => Ok(value),
            error => Err(failed("read a map")(Error::from_raw_os_error(-error))),
        }
    }
}

impl<V> AsFd for ArrayMap<V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
