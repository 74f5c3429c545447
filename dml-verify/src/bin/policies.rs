//! Prints the tables of `cargo xtask policies`: how near the policies come to the ideal, in virtual time.

fn main() {
    dml_verify::coexecution::tables::print();
}
