//! Settings from the environment, which apply to the module as to uiw's programs: TLS, captures,
//! counters, the log, options of connections.

use crate::error::raise;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use uiw::llp::capture::PcapSink;
use uiw::tls::Tls;
use uiw::{ConnectionConfig, DeviceConfig};
use uiw_cabi_core::counters::CounterDestination;
use uiw_cabi_core::log::{MAX_LINE, shown};
use uiw_cabi_core::settings::Settings;

/// Capture file of the process, which all of its devices write.
static SINK: Mutex<Option<Arc<PcapSink>>> = Mutex::new(None);

/// TLS of all devices of the process. Connections between two of them are not encrypted.
static TLS: Mutex<Option<Tls>> = Mutex::new(None);

/// Returns the settings. The first call starts the log.
///
/// # Errors
/// `ValueError` if a variable has an invalid value.
fn settings() -> PyResult<&'static Settings> {
    Settings::get().map_err(|_| {
        PyValueError::new_err(
            "an environment variable of uiw has a bad value; standard error names it",
        )
    })
}

/// Opens a device with `config` and the settings of the environment.
///
/// # Errors
/// `ValueError` for an invalid value or an invalid file for TLS, and `OSError` or one of its
/// subclasses if the device cannot be opened.
pub(crate) fn open(config: DeviceConfig) -> PyResult<uiw::Device> {
    let settings = settings()?;
    let tls = tls(settings)?;
    // Programs publish their counters by default, but a library creates files only if the user asks
    // for it.
    let counters = match &settings.counters {
        counters @ CounterDestination::In(_) => {
            counters.publish_config("the Python module uiw".to_owned())
        }
        CounterDestination::User | CounterDestination::Off => None,
    };
    let config = config
        .tls(tls)
        .capture_to(sink(settings)?)
        .counters(counters)
        .transport_faults(settings.faults.clone())
        .faults(settings.plan.clone());
    uiw::Device::with_stack(settings.llp.open()?, config).map_err(raise)
}

/// Returns the number of shards that the environment asks for.
///
/// # Errors
/// The errors are those of [`settings`].
pub(crate) fn shards() -> PyResult<Option<usize>> {
    Ok(settings()?.shards)
}

/// Returns the configuration of connections, with the options from the environment.
///
/// # Errors
/// The errors are those of [`settings`].
pub(crate) fn connections() -> PyResult<ConnectionConfig> {
    let config = ConnectionConfig::default();
    let mut options = settings()?.connection();
    options.no_receive_timeout = config.options.no_receive_timeout;
    options.close_timeout = config.options.close_timeout;
    Ok(config.options(options))
}

/// Returns the TLS settings of the process. Their files are read and watched from the first call
/// on.
fn tls(settings: &Settings) -> PyResult<Option<Tls>> {
    let mut tls = TLS.lock().unwrap_or_else(PoisonError::into_inner);
    if tls.is_none() {
        *tls = settings.watched_tls().map_err(PyValueError::new_err)?;
    }
    Ok(tls.clone())
}

fn sink(settings: &Settings) -> PyResult<Option<Arc<PcapSink>>> {
    let Some(file) = &settings.pcap else { return Ok(None) };
    let mut sink = SINK.lock().unwrap_or_else(PoisonError::into_inner);
    if sink.is_none() {
        let created = PcapSink::create(file.clone());
        *sink = Some(created.map_err(|error| {
            PyOSError::new_err(shown(&format!("UIW_PCAP={file}: {error}"), MAX_LINE))
        })?);
    }
    Ok(sink.clone())
}

/// Writes buffered packets to the capture file of the process. Python calls this when the program
/// exits.
#[pyfunction]
pub(crate) fn flush_capture() -> PyResult<()> {
    let sink = SINK.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(sink.map_or(Ok(()), |sink| sink.flush())?)
}
