//! The reader of application files: it neither panics nor names a place outside of the text.

#![no_main]

use dml_app::{Application, ApplicationError, Changes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(ApplicationError::Invalid(faults)) = Application::from_text("app.toml", text, &Changes::new())
    {
        let lines = text.matches('\n').count() + 1;
        assert!(!faults.as_slice().is_empty());
        assert!(faults.as_slice().iter().all(|fault| (1..=lines).contains(&fault.line) && fault.column > 0));
    }
});
