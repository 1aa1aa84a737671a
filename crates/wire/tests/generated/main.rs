//! Tests on packets built option by option.

mod cases;
mod corpus;
mod forms;
mod tshark;
