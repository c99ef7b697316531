// Transactions over Thrift: what `txn serve --transactional` answers and connect("txn://...") asks.
//
// Every request may be sent as it stands by any Thrift client: commit(mutations) is enough. Numbers
// once given are never given again; new fields are optional.

namespace java hbasetxn
namespace go hbasetxn

struct Key {
  1: required binary row
  2: required binary family
  3: required binary column
  4: required binary table
}

// Without a value it removes the key.
struct Mutation {
  1: required Key key
  2: optional binary value
}

enum AssertionKind {
  EXACT = 1,         // key, value
  SOME = 2,          // key: it has a value
  GREATER_THAN = 3,  // key, value: byte by byte; an absent key is not
  VERSION = 4,       // key, timestamp of its newest version; none: the key has no value
  NOT = 5,           // of the one before
  AND = 6,           // of the `count` before
  OR = 7,
}

// Assertions are a list in which each part stands before what it is part of: NOT takes the one
// before it, AND and OR the `count` before them. Each that is left at the end must hold.
struct Assertion {
  1: required AssertionKind kind
  2: optional Key key
  3: optional binary value
  4: optional i64 timestamp
  5: optional i32 count
}

struct Request {
  1: required list<Mutation> mutations
  2: optional list<Assertion> assertions
  3: optional binary once            // of all requests with this token at most one commits
  4: optional map<string, string> labels
  5: optional i64 onceRetentionMs    // a promise: no request with the token comes later than that
                                     // after the commit; then the server may forget it
  6: optional i64 withinMs           // until its decision; none: the server's policy
  7: optional map<string, string> trace  // as in Options
  8: optional bool validate          // as in Options
  9: optional binary onceContent     // as in Options
}

enum Ack {
  COMPLETE = 1,  // answer when every lock is released
  DECIDED = 2,   // answer as soon as it is committed
}

struct Column {
  1: required binary family
  2: required binary column
}

// The rows from start (included) to stop (excluded, if given), and which of their columns (none:
// all).
struct Span {
  1: required binary table
  2: required binary start
  3: optional binary stop
  4: optional list<Column> columns
}

struct Options {
  1: optional string token           // where the server asks for one
  2: optional Ack ack
  3: optional binary once
  4: optional map<string, string> labels
  5: optional binary request         // a name for this request, to ask for it with `findOutcome`
  6: optional i64 onceRetentionMs
  7: optional i64 withinMs           // until a commit's decision, or an answer; none: the server's
                                     // policy. A read whose time is over is answered with Deadline
  8: optional map<string, string> trace  // W3C's headers: under which span the server puts its own
  9: optional list<Span> scanned     // ranges that a commit has scanned: they may have no keys but
                                     // those that it names in its mutations and assertions, else
                                     // it is answered with Conflict or AssertionFailed
  10: optional bool validate         // whether keys that are asserted and not mutated are validated
                                     // before the decision, not locked; none: the server's policy
  11: optional binary onceContent    // what the token stands for; none: the mutations and
                                     // assertions, or with an answer nothing that is known
  12: optional binary answer         // kept with the token: see `findOnce`
}

// In msgpack.
struct Answer {
  1: required binary packed
}

struct Committed {
  1: required binary transaction     // its row key
  2: required i64 timestamp          // of all its cells, in ms
  3: required bool repeated          // a request with the same `once` had committed before
  4: required bool complete          // every lock is released
  5: optional binary digest          // if repeated: of what the token stands for, if known
  6: optional bool hasAnswer         // if repeated: the result of the first one's block is known
  7: optional Answer answer          // none: it is nil
}

// Without a value, it was not read: only the cells of a failed assertion may be so.
struct Cell {
  1: optional binary value
  2: required i64 timestamp
}

// Without a cell the key has no value.
struct Found {
  1: required Key key
  2: optional Cell cell
}

enum Outcome {
  COMMITTED = 1,
  ABORTED = 2,
  UNDECIDED = 3,
  UNKNOWN = 4,   // no trace of it: it may have been either, or may still come
}

struct StoredRow {
  1: required binary row
  2: required list<Found> cells
}

// following: where the rows begin that may come behind these; absent: there are none. Of a scan in
// reverse: the row before which they end.
struct Page {
  1: required list<StoredRow> rows
  2: optional binary following
}

// The cells of keys, and of each span those that have a value, in order.
struct View {
  1: required list<Found> keys
  2: required list<list<Found>> spans
}

// transactions: the name of the transaction table. protocol: its stored name, "six-phase/2" or
// "fenced/2". keepsRows: whether every transaction leaves a row.
struct Database {
  1: required binary transactions
  2: required string protocol
  3: optional bool keepsRows
}

struct FoundOutcome {
  1: required Outcome outcome
  2: optional Committed committed
}

// The request can never succeed as it is: change it. Nothing was written. token, transaction: the
// token was committed with another content, by this transaction.
exception Invalid {
  1: required string message
  2: optional binary token
  3: optional binary transaction
}

// The token is missing or wrong. Nothing was done.
exception Unauthorized {
  1: required string message
}

// Nothing was written and never will be; running it again may help or not.
exception Aborted {
  1: required string message
  2: optional binary transaction
}

// Nothing was written: run it again.
exception Conflict {
  1: required string message
  2: optional binary transaction
  3: optional Key key
  4: optional binary holder
}

// Nothing was written: read again and decide. The assertion, its parts before it, and the cells seen.
exception AssertionFailed {
  1: required string message
  2: optional binary transaction
  3: required list<Assertion> assertion
  4: required list<Found> seen
}

// Nothing was written: run it again with more time or less load.
exception Deadline {
  1: required string message
  2: optional binary transaction
}

// It may be committed: ask `outcome` for the transaction before doing anything else.
exception OutcomeUnknown {
  1: required binary transaction
}

// The server's store could not do it: mend that. A commit is then not committed. table: the one that
// is missing, or lacks a family, or is disabled, if that is why.
exception StoreFailed {
  1: required string message
  2: optional binary table
}

// Stored bytes do not decode: run fsck.
exception Corrupt {
  1: required string message
}

// One of these, and no more.
struct Result {
  1: optional Committed committed
  2: optional Aborted aborted
  3: optional Conflict conflict
  4: optional AssertionFailed failed
  5: optional Deadline deadline
  6: optional OutcomeUnknown unknown
  7: optional StoreFailed store
  8: optional Corrupt corrupt
  9: optional Invalid invalid
}

// ----------------------------------------------------------------------------------------------
// The cells as they are stored: for recovery, which looks at the rows of transactions and ends what
// was begun. What is written so keeps no promise of a transaction.

// A put at a timestamp, without one at the server's time; without a value a mark that deletes the
// column up to it.
struct Edit {
  1: required Key key
  2: optional binary value
  3: optional i64 timestamp
}

// A put at the server's time.
struct Put {
  1: required Key key
  2: required binary value
}

// Which rows a scan leaves out: those whose newest version of this column has one of the values.
struct Exclude {
  1: required binary family
  2: required binary column
  3: required list<binary> values
}

// The versions of a key, newest first.
struct Versions {
  1: required Key key
  2: required list<Cell> cells
}

// If the key has the expected value (empty: or none; absent: any), put and make the edits; all of
// one row. A deferred one need not wait for the log of its server.
struct Check {
  1: required Key key
  2: optional binary expected
  3: required list<Put> puts
  4: required list<Edit> edits
  5: optional bool isDeferred
}

struct Family {
  1: required binary name
  2: required i32 versions
  3: optional i64 ttlMs
  4: optional i64 keepDeletesMs
  5: optional string durability        // only one that loses acknowledged writes
  6: required bool newVersionBehavior
  7: required i32 replicas
  8: optional binary database          // the transaction table of the one it belongs to
}

// Without families there is no such table.
struct Described {
  1: optional list<Family> families
}

service Transactional {
  // Apply all mutations if all assertions hold, else none.
  Committed commit(1: required list<Mutation> mutations, 2: list<Assertion> assertions,
                   3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: Aborted aborted,
            4: Conflict conflict, 5: AssertionFailed failed, 6: Deadline deadline,
            7: OutcomeUnknown unknown, 8: StoreFailed store, 9: Corrupt corrupt)

  // Commit independent requests together, each on its own terms; answers in their order. `once`,
  // `labels` and `withinMs` are those of the requests; the name of number n is the given one, "/" and n.
  list<Result> commitMany(1: required list<Request> requests, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized)

  // The keys' cells as of one instant: every transaction wholly or not at all.
  list<Found> read(1: required list<Key> keys, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: Aborted aborted,
            4: Conflict conflict, 5: Deadline deadline, 6: OutcomeUnknown unknown,
            7: StoreFailed store, 8: Corrupt corrupt)

  // The first rows of a range that have a value, in order, each as of one instant: as many as make a
  // page. Ask for more, from `following`, while there may be more; nothing is kept between the pages.
  Page scan(1: required Span span, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: Aborted aborted,
            4: Conflict conflict, 5: Deadline deadline, 6: OutcomeUnknown unknown,
            7: StoreFailed store, 8: Corrupt corrupt)

  // Cells of keys and of ranges as of one instant: a snapshot, of at most 10,000 rows of each range
  // and 64 MB.
  View view(1: required list<Key> keys, 2: required list<Span> spans, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: Aborted aborted,
            4: Conflict conflict, 5: Deadline deadline, 6: OutcomeUnknown unknown,
            7: StoreFailed store, 8: Corrupt corrupt)

  // What the database is.
  Database database(1: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // What has become of a transaction, by its row key.
  Outcome outcome(1: required binary transaction, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The commit of a `once` token; UNKNOWN: there was none, but a request in flight may commit.
  FoundOutcome findOnce(1: required binary token, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt, 5: Aborted aborted, 6: Conflict conflict, 7: Deadline deadline,
            8: OutcomeUnknown unknown)

  // What has become of a request whose answer was lost, by its name and how long ago it was sent.
  FoundOutcome findOutcome(1: required binary request, 2: required i64 agoMs, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The same of the requests of a commitMany, in their order, by its name and their count.
  list<FoundOutcome> findOutcomes(1: required binary request, 2: required i32 count,
                                  3: required i64 agoMs, 4: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // Create the table and those of its families that are missing.
  void ensureTable(1: required binary table, 2: required list<binary> families, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The newest versions of the keys as they are now, whatever is under way.
  list<Found> storeRead(1: required list<Key> keys, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The visible versions of the keys as they are now, at most `count` of each.
  list<Versions> storeVersions(1: required list<Key> keys, 2: required i32 count, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // Write puts and marks, byRow: those of each row at once. Repeating it changes nothing; after
  // StoreFailed it may be done or not.
  void storeWrite(1: required list<Edit> edits, 2: bool durable, 3: bool byRow, 4: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // Carry out checked writes one after the other, and answer which of them were done.
  list<bool> storeCheck(1: required list<Check> checks, 2: bool durable, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The first rows from start (included) to stop (excluded, if given), with these columns (none:
  // all), as many as make a page. Nothing is kept between the pages. The column of `exclude` must be
  // among the columns, if they are given. reverse: the same rows, the last one first.
  Page storeScan(1: required binary table, 2: required binary start, 3: binary stop,
                 4: list<Column> columns, 5: Exclude exclude, 6: bool reverse, 7: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // The names of all tables, in byte order.
  list<binary> storeTables(1: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // A table's families and their settings.
  Described storeDescribe(1: required binary table, 2: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // Create the table and those of its families that are missing, with these settings.
  void storeEnsure(1: required binary table, 2: required list<Family> families, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)

  // Give back the room of what was deleted before this.
  void storeCompact(1: required binary table, 2: required i64 purgeBeforeMs, 3: Options options)
    throws (1: Invalid invalid, 2: Unauthorized unauthorized, 3: StoreFailed store,
            4: Corrupt corrupt)
}
