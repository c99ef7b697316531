#!/bin/sh
# Made by hbase-txn: this Java lacks the module {module}, which Spark asks for and does not need.
# The loop takes each argument from the front and puts those it keeps at the back.
previous=
for argument do
  shift
  case "$previous$argument" in
    --add-modules={module}) previous= ;;
    --add-modules) previous=--add-modules= ;;
    --add-modules=*) set -- "$@" "$previous$argument"; previous= ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
