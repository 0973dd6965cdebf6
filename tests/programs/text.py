"""Programs as pseudocode."""

from __future__ import annotations

from typing import Any

import numpy as np

from .syntax import (
    INDICES,
    INT,
    Block,
    ByRow,
    Choose,
    FillArray,
    Gradient,
    Grow,
    Let,
    Loop,
    MakeVariable,
    NewArray,
    Recurse,
    Scan,
    SetVariable,
    Split,
    Statement,
    Write,
)


def block_text(block: Block) -> list[str]:
    return [line for statement in block for line in _statement_text(statement)] or ["pass"]


def _indented(block: Block) -> list[str]:
    return ["    " + line for line in block_text(block)]


def _statement_text(statement: Statement) -> list[str]:
    match statement:
        case Let(name, value):
            return [f"{name} = {value}"]
        case Loop():
            condition = f"{statement.counter} < {statement.limit}"
            condition += "" if statement.also is None else f" and {statement.also}"
            options = f"  # carries {', '.join(statement.through)}" if statement.through else ""
            options += f"  # maximum_iterations={statement.maximum}" if statement.maximum is not None else ""
            end = f"    {statement.counter} += 1"
            return [f"{statement.counter} = 0", f"while {condition}:{options}", *_indented(statement.body), end]
        case Choose(choice, branches, second):
            lines = [f"match {choice}{'' if second is None else f', {second}'}:"]
            labels = ("true", "false") if second is None else ("first", "second", "none")
            for position, branch in enumerate(branches):
                label = str(position) if choice.type == INT else labels[position]
                lines += [f"  case {label}:", *_indented(branch)]
            return lines
        case ByRow(name, choice, operand, rows, branches):
            by = "index" if choice.type == INDICES else "positive"
            lines = [f"{name} = by row of {rows} = {operand}, {by} {choice}:"]
            for branch, result in branches:
                lines += ["  case:", *_indented(branch), f"    yield {result}"]
            return lines
        case Scan():
            head = f"{statement.ys} = {statement.how} over {'reversed ' if statement.reverse else ''}{statement.xs}"
            carry = "" if statement.carry is None else f", carrying {statement.carry}"
            return [f"{head}{carry}: {statement.element} =>", *_indented(statement.body), f"    yield {statement.y}"]
        case NewArray(name, rows):
            return [f"{name} = TensorArray.unstack({rows})"]
        case Split(name, value, first, second):
            return [f"{name} = TensorArray.split({value}, at {first}, {second})"]
        case FillArray():
            kind = "growing " if statement.dynamic else ""
            each = f"[{statement.value} for {statement.counter} in range({statement.type.size})]"
            return [f"{statement.name} = {kind}TensorArray of {each}"]
        case Write(array, index, value, size):
            return [f"{array} = {array}.write({index} % {size}, {value})"]
        case MakeVariable(variable):
            return [f"{variable} is made here"]
        case SetVariable(variable, value, result, add):
            return [f"{result} = {variable}.assign{'_add' if add else ''}({value})"]
        case Gradient(name, source, inner, body, y):
            return [f"{name} = gradient at {inner} = {source} of:", *_indented(body), f"    yield {y}"]
        case Recurse():
            return _recursion_text(statement)
        case Grow():
            step = f"concat([acc, {statement.piece} at {statement.head} = acc[-3:]])"
            return [f"{statement.name} = grow acc = {statement.start} {statement.limit} times by {step}"]


def _recursion_text(statement: Recurse) -> list[str]:
    head = f"def f({statement.level}, {statement.value}): if {statement.level} <= 0: {statement.base}; else:"
    call = f"f({statement.level} - 1, {statement.value})"
    call += f" + f({statement.level} - 2, {statement.value})" if statement.twice else ""
    end = [f"    {statement.deeper} = {call}", f"    yield {statement.result}"]
    return [head, *_indented(statement.body), *end, f"{statement.name} = f({statement.limit}, {statement.start})"]


def value_text(value: Any) -> str:
    return str(np.asarray(value).tolist())
