// A service for tests of the server: every type that requests may have, and every way to fail.

exception Declared {
  1: string message
}

struct Part {
  1: required binary name
  2: optional i64 number
}

struct Whole {
  1: required binary name
  2: optional list<Part> parts
  3: optional map<binary, Part> named
  4: optional bool truth
  5: optional double real
  6: optional list<bool> truths
  7: optional i16 small
  8: optional byte tiny
  9: optional set<i32> numbers
  10: optional string text
  11: optional Whole inner
}

service Echo {
  Whole same(1: Whole whole)
  binary wait(1: binary name)
  void fail(1: bool declared) throws (1: Declared declared)
  oneway void tell(1: binary name)
  binary large(1: i32 size)
}
