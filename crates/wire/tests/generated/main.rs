//! Tests on packets that are built option by option.

mod cases;
mod corpus;
mod forms;
mod tshark;
