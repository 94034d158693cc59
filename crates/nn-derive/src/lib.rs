//! `#[derive(Module)]` of `dtensor-nn`, which documents it.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, parse_macro_input};

/// Lists the parameters, buffers and modules among the fields of a struct. A field `state` of type `ModuleState` must be
/// there; fields marked `#[module(skip)]` are left out.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> syn::Result<proc_macro2::TokenStream> {
    let name = &input.ident;
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(name, "a module is a struct with named fields"));
    };
    let Fields::Named(fields) = &data.fields else {
        return Err(Error::new_spanned(name, "a module is a struct with named fields"));
    };
    let (mut has_state, mut members) = (false, Vec::new());
    for field in &fields.named {
        let Some(ident) = &field.ident else { continue };
        if ident == "state" {
            has_state = true;
        } else if !is_skipped(field)? {
            members.push(ident);
        }
    }
    if !has_state {
        let what = "a module needs a field `state: ModuleState`";
        return Err(Error::new_spanned(name, what));
    }
    let names = members.iter().map(ToString::to_string).collect::<Vec<_>>();
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::dtensor_nn::Module for #name #arguments #bounds {
            fn state(&self) -> &::dtensor_nn::ModuleState {
                &self.state
            }

            fn state_mut(&mut self) -> &mut ::dtensor_nn::ModuleState {
                &mut self.state
            }

            fn members<'a>(&'a self, members: &mut ::dtensor_nn::Members<'a>) {
                #(::dtensor_nn::Field::list(&self.#members, #names, members);)*
            }

            fn modules_mut<'a>(&'a mut self, modules: &mut ::dtensor_nn::ModulesMut<'a>) {
                #(::dtensor_nn::Field::list_mut(&mut self.#members, #names, modules);)*
            }
        }
    })
}

/// Whether a field is marked `#[module(skip)]`.
fn is_skipped(field: &syn::Field) -> syn::Result<bool> {
    let mut skipped = false;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| match meta.path.is_ident("skip") {
            true => {
                skipped = true;
                Ok(())
            }
            false => Err(meta.error("only `skip` is known")),
        })?;
    }
    Ok(skipped)
}
